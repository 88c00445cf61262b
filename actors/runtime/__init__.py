"""Clients, coordinator and executor as Ray actors."""
