"""Reports: what people see: predicted against measured, traces, the scaling gate."""
