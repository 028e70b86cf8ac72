"""The business: invoices, a nightly report, a feed of prices. This is what you would write."""
