"""Small shared values: errors, configs, types, text, clock, options, threads. Imports no other package of Cordwood."""
