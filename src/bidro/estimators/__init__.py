"""scikit-learn estimators on the exact solver."""

from bidro.estimators.classifier import RobustClassifier
from bidro.estimators.regressor import RobustRegressor

__all__ = ["RobustClassifier", "RobustRegressor"]
