"""Files for running RELIEF-Ray on several machines, and ``lab``: a small cluster on one machine for tests."""
