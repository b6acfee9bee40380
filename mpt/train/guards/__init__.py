"""Guards: what they watch of each step is one file; what they may do about it is guard.<name>."""

from mpt.train.guards._base import Alarm, Facts, Guard, cause
from mpt.train.guards._watch import Watch

__all__ = ["Alarm", "Facts", "Guard", "Watch", "cause"]
