"""Convolutions along one or three axes as those of images, and what follows them."""
