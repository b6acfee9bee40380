"""Checkpoints that are whole or not there: committed by a marker, verified by checksum."""

from mpt.checkpoint.match import half_weights, model_mismatch, non_finite
from mpt.checkpoint.saver import Saver
from mpt.checkpoint.store import CheckpointStore, find, load

__all__ = ["CheckpointStore", "Saver", "find", "half_weights", "load", "model_mismatch", "non_finite"]
