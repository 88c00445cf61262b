"""Tables, figures and verdicts: functions of run records only."""
