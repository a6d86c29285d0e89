"""What a run is made from: the model, prompts, reward functions and the numbers that follow from them."""
