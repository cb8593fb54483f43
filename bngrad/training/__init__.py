"""What surrounds a training graph: trained values back into the forward model."""
