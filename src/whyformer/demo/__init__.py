"""What ships to try whyformer on: small trained models, and worlds in which the right explanation is known."""
