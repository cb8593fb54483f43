"""Attributes of windows over two dimensions that nodes refuse, and the messages."""

WRONG_WINDOWS = [
    ({"strides": [1]}, r"attribute strides is \[1\]; expected 2 values of 1 or more"),
    ({"strides": [1, 0]}, r"attribute strides is \[1,0\]; expected 2 values of 1 or more"),
    ({"dilations": [0, 1]}, r"attribute dilations is \[0,1\]; expected 2 values of 1 or more"),
    ({"kernel_shape": [3, 3, 3]}, r"attribute kernel_shape is \[3,3,3\]; expected 1 to 2 values"),
    ({"pads": [1, 1]}, r"attribute pads is \[1,1\]; expected 4 values of 0 or more"),
    ({"pads": [0, -1, 0, 0]}, r"attribute pads is \[0,-1,0,0\]; expected 4 values of 0 or more"),
]
