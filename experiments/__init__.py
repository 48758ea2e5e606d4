"""QUESTIONS: predictions beside measurements, the demo, plots. Results are rows; plots are small functions of rows."""
