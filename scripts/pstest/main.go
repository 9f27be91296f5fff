// Google's own fake of Pub/Sub, from Debian's golang-google-cloud-dev. Prints its address and runs until it is killed.
package main

import (
	"fmt"

	"cloud.google.com/go/pubsub/pstest"
)

func main() {
	server := pstest.NewServer()
	fmt.Println(server.Addr)
	select {}
}
