"""Several processes that train one model: their groups, and how the model is divided among them."""
