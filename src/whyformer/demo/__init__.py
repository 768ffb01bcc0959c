"""Bundled small models and sample files, and generated data sets in which the right explanation is known."""

from whyformer.demo.sample_files import sample

__all__ = ["sample"]
