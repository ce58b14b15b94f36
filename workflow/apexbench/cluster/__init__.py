"""Jobs on a cluster: what Slurm gave one, what the login node cannot know, why one was lost."""
