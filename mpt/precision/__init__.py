"""Which number format each role uses, the mechanism that makes it so, and the audit that proves it."""
