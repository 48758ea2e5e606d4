"""Instructions given DURATION: discrete events on SimPy; network, cores, parameter servers, background sync."""
