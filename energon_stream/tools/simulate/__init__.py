"""Training without its requests: explained, or run against a model of a store.

:func:`simulate` predicts the speed of training: it runs the look-ahead against a model of a store, in virtual
time. :func:`forecast` counts what some steps read, and what that costs.
:mod:`~energon_stream.tools.simulate.explain` says why each request is made.
"""

from energon_stream.tools.simulate.forecast import Forecast, OrderMap, PackBalance, Prices, forecast
from energon_stream.tools.simulate.model import Costs, StoreModel
from energon_stream.tools.simulate.prediction import Prediction, simulate

__all__ = [
    "Costs",
    "Forecast",
    "OrderMap",
    "PackBalance",
    "Prediction",
    "Prices",
    "StoreModel",
    "forecast",
    "simulate",
]
