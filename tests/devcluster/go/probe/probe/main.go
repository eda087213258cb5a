// Program probe is what the cluster's own tests run in pods: it says who it is and tells what a
// process in its place can reach.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, os.Getenv("HOSTNAME"))
	})
	http.HandleFunc("/dial", func(w http.ResponseWriter, r *http.Request) {
		connection, err := net.DialTimeout("tcp", r.FormValue("address"), 3*time.Second)
		if err != nil {
			fmt.Fprintln(w, err)
			return
		}
		connection.Close()
		fmt.Fprintln(w, "connected")
	})
	http.HandleFunc("/resolve", func(w http.ResponseWriter, r *http.Request) {
		addresses, err := net.LookupHost(r.FormValue("name"))
		if err != nil {
			fmt.Fprintln(w, err)
			return
		}
		json.NewEncoder(w).Encode(addresses)
	})
	http.HandleFunc("/routes", func(w http.ResponseWriter, _ *http.Request) {
		routes, err := os.ReadFile("/proc/net/route")
		if err != nil {
			fmt.Fprintln(w, err)
			return
		}
		w.Write(routes)
	})
	// One line each 50 ms until the client leaves; then /left counts it.
	left := make(chan struct{}, 1024)
	http.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case <-r.Context().Done():
				left <- struct{}{}
				return
			case <-time.After(50 * time.Millisecond):
				fmt.Fprintln(w, "tick")
				w.(http.Flusher).Flush()
			}
		}
	})
	http.HandleFunc("/left", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, len(left))
	})
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		os.Exit(0)
	}()
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}
