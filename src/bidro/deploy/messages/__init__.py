"""What a server asks of a site and what a site replies: queries, their numbers and their limits."""
