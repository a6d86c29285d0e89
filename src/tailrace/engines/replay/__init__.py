"""An engine that generates nothing: it gives back what another run has saved."""
