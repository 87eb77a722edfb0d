"""What is known of accelerators, written from the facts of shared/reference: data, no decisions."""
