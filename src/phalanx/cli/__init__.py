"""The phalanx command. Uses the API, and starts and stops the processes of this machine."""
