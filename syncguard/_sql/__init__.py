"""What the SQL backends share: names, options, and rows. No driver, and no I/O."""
