// The program of the test image; the standard library is all it needs.
module mizzen.dev/devcluster/probe

go 1.26.0
