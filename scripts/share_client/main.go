// Franz-go's share consumer: `share-client SERVERS TOPIC GROUP COUNT` takes the numbers 0 to COUNT-1 with two members.
// Of each five, one is released at its first delivery, one rejected, one renewed and accepted, and two are accepted.
// It prints nothing if each number is settled once, and delivered as often as that needs. Built by scripts/tools.py.
package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	release = 1
	reject  = 2
	renew   = 3
	atOnce  = 7
)

type settled struct {
	mutex  sync.Mutex
	counts map[int]int32 // delivery count at which a number was settled
	left   int
}

func (s *settled) add(number int, deliveries int32) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, again := s.counts[number]; again {
		log.Fatalf("%d was settled, and delivered again", number)
	}
	s.counts[number] = deliveries
	s.left--
}

func (s *settled) done() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.left == 0
}

func take(ctx context.Context, servers, topic, group string, all *settled) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.ConsumeTopics(topic),
		kgo.ShareGroup(group),
		kgo.ShareMaxRecords(atOnce),
		kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				log.Fatalf("an acknowledgement: %v", err)
			}
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for !all.done() {
		soon, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := client.PollFetches(soon)
		cancel()
		if ctx.Err() != nil {
			log.Fatal("not all numbers came in time")
		}
		for _, each := range fetches.Errors() {
			if each.Err != context.DeadlineExceeded {
				log.Fatalf("%s %d: %v", each.Topic, each.Partition, each.Err)
			}
		}
		for _, record := range fetches.Records() {
			number, err := strconv.Atoi(string(record.Value))
			if err != nil {
				log.Fatal(err)
			}
			kind, deliveries := number%5, record.DeliveryCount()
			switch {
			case kind == release && deliveries == 1:
				record.Ack(kgo.AckRelease)
				continue
			case kind == reject:
				record.Ack(kgo.AckReject)
			case kind == renew:
				record.Ack(kgo.AckRenew)
				if err := client.FlushAcks(ctx); err != nil {
					log.Fatal(err)
				}
				record.Ack(kgo.AckAccept)
			default:
				record.Ack(kgo.AckAccept)
			}
			all.add(number, deliveries)
		}
	}
	if err := client.FlushAcks(ctx); err != nil {
		log.Fatal(err)
	}
}

func main() {
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all := &settled{counts: map[int]int32{}, left: count}
	var members sync.WaitGroup
	for range 2 {
		members.Add(1)
		go func() {
			defer members.Done()
			take(ctx, os.Args[1], os.Args[2], os.Args[3], all)
		}()
	}
	members.Wait()
	for number, deliveries := range all.counts {
		wanted := int32(1)
		if number%5 == release {
			wanted = 2
		}
		if deliveries != wanted {
			log.Fatalf("%d was delivered %d times, not %d", number, deliveries, wanted)
		}
	}
}
