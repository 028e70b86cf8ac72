"""The business: invoices, a nightly report, a feed of prices. A user writes code like this."""
