"""The timed engine: made-up tokens at the speed of a cost model, to try a controller without accelerators."""
