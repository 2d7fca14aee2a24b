"""Predicts the speed of training: runs the look-ahead against a model of a store, in virtual time."""

from energon_stream.simulate.model import Costs, StoreModel
from energon_stream.simulate.run import Prediction, simulate

__all__ = ["Costs", "Prediction", "StoreModel", "simulate"]
