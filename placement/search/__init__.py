"""The plan of a whole job: group sizes, numbers of groups and servers, compositions of unlike machines, codecs, bounds."""
