"""Which worker holds which part of the model, and which slice has to go from whom to whom."""
