"""What a program calls of frames: to read any bounded source, and to say where bad records go."""
