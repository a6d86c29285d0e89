"""What a command of the CLI or a call of ``api.py`` does: train, generate, plan, measure. Each puts a run together from
the layers below."""
