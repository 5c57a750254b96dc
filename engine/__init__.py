"""The engine of trainui: config, plan, launch, judge, record. It never imports `tui`."""
