"""Learning agents that know nothing of HLO; they arrive with the search issue."""
