"""Networks: training with held-out rows, scikit-learn's face, weights in a folder."""
