"""The version of the distribution, read by the build and by `gspool.__version__`."""

__version__ = "0.2.0"
