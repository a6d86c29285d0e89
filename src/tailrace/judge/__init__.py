"""A model that reads tokens and says how likely others are: a judge of responses, or a teacher.

``judge.py`` scores responses, ``model.py`` answers the general question (log-probs of given tokens at given positions),
``decoder.py`` runs the network over several sequences. ``questions.py``, ``template.py`` and ``passes.py`` import no
torch.
"""
