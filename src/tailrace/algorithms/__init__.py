"""Pure tensor functions of learning: no model, no optimizer, no state.

Shapes:  B sequences, T response positions (padded), G groups.
A mask is boolean and True where a token takes part in the loss. What stands at masked positions never matters,
not even a NaN.
"""
