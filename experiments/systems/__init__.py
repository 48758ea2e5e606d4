"""Questions about whole systems: what each part of hierarchical training is worth, and published systems beside ours."""
