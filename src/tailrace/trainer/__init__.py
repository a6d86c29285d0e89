"""Learning on one device or one worker: samples in, a new version of the weights out."""
