"""The exact solver: a proximal bundle method for MW-DRO, and squared loss from second moments."""
