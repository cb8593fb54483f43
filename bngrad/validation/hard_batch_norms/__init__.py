"""A set of batch norms whose results are often wrong, with inputs, float64 results and error bounds."""
