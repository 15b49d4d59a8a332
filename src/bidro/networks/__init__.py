"""Networks: training with kept-out rows, scikit-learn's face, weights in a folder."""
