"""Number formats as data, and rounding to them."""
