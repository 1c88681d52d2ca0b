"""Find the operator that first turned finite numbers into NaN or Inf in a training step's msProbe dumps."""
