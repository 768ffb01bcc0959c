"""Generated data sets in which the right explanation is known: what the bundled models were trained on."""
