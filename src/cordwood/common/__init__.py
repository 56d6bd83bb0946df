"""Small shared values: errors, configs, types, text, clock, options, threads. Imports nothing else of Cordwood."""
