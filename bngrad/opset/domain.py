"""The name and the version of the opset."""

DOMAIN = "bngrad"
VERSION = 1
